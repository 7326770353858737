// Package checkpoint decides whether a watch may be resumed, and from where.
// The root package is the product; this part of it promises no compatibility.
//
// A [Record] that has changed is written in the batch of the objects that it describes. After a restart, [Decide]
// compares it with [Want], and returns one of three ways to start: resume the watch; relist with a diff; or relist
// without serving the stored objects before, and compare them by content. The package knows neither the file nor the
// API server. It does no I/O, except that BinaryVersion reads the program's executable.
//
// It keeps these promises (docs/limits.md):
//
//   - A3: a missing, incomplete or mismatched checkpoint never resumes.
//   - A4: a resourceVersion is judged only with apimachinery's
//     util/resourceversion.
package checkpoint
