// Package check says whether an informer keeps its promises, whatever is done to
// its file: a server whose history is a function of a seed, handlers that
// remember what they got, and a look into the file itself.
//
// An attack runs sessions, see [Begin], in a process that may be killed. What
// they see is written as [Mark]s, and a [World] is what the marks say: the
// next process goes on from there, whichever of them were before its crash.
package check
