package indexer

import "sync"

// bufferBytes is how much is allocated for records at a time.
const bufferBytes = 128 << 10

// bufferPool has buffers of bufferBytes that nobody uses.
var bufferPool = sync.Pool{New: func() any { return new([bufferBytes]byte) }}

// buffers hold copies of records until they are decoded. The zero value is ready.
type buffers struct {
	used []*[bufferBytes]byte
	free []byte // Of the last one.
}

// hold copies a record. The copy is valid until release.
func (b *buffers) hold(record []byte) []byte {
	if len(record) > bufferBytes/4 { // It would leave too much of a buffer unused.
		return append([]byte(nil), record...)
	}
	if len(b.free) < len(record) {
		buf := bufferPool.Get().(*[bufferBytes]byte)
		b.used, b.free = append(b.used, buf), buf[:]
	}
	held := b.free[:len(record):len(record)]
	b.free = b.free[len(record):]
	copy(held, record)
	return held
}

// release gives the buffers back.
func (b *buffers) release() {
	for _, buf := range b.used {
		bufferPool.Put(buf)
	}
	*b = buffers{}
}
