// Package checkpoint says from where a watch may be resumed.
//
// A [Record] is written in the same batch as the objects it speaks of. After a
// restart, [Decide] compares it with what the program now [Want]s, and answers
// with one of three ways to start: resume the watch, relist with a diff, or
// discard the objects and list. The package is pure: it does no I/O, and knows
// neither the file nor the API server. BinaryVersion alone looks at the
// program's executable.
//
// It keeps these invariants (docs/design/README.md, "Invariants"):
//
//   - C1: a missing, incomplete or mismatched checkpoint never resumes.
//   - C2: a resourceVersion is judged only with apimachinery's
//     util/resourceversion.
package checkpoint
