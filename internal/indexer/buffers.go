package indexer

import "sync"

// bufferBytes is the size of a buffer that holds records.
const bufferBytes = 128 << 10

// bufferPool has the buffers that are not in use.
var bufferPool = sync.Pool{New: func() any { return new([bufferBytes]byte) }}

// buffers hold copies of records until they are decoded. The zero value is ready.
type buffers struct {
	used []*[bufferBytes]byte
	free []byte // The unused end of the last buffer.
}

// hold copies a record. The copy is valid until release.
func (b *buffers) hold(record []byte) []byte {
	if len(record) > bufferBytes/4 { // It could leave too much of a buffer unused.
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

// release returns the buffers to the pool.
func (b *buffers) release() {
	for _, buf := range b.used {
		bufferPool.Put(buf)
	}
	*b = buffers{}
}
