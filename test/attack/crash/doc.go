// Package crash fails each operation that an informer makes on its file, one after
// the other, and kills it there.
package crash
