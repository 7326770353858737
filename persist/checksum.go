package persist

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksumBytes is the length of the checksum behind each value.
const checksumBytes = 4

func checksum(b Bucket, key string, payload []byte) uint32 {
	// Bucket and key are covered, too: a value must not be taken for another key's.
	crc := ^uint32(0)
	for _, s := range [...]string{b.Space, "/", b.Name, "/", key} {
		for i := range len(s) { // crc32.Update wants slices, which are copies.
			crc = castagnoli[byte(crc)^s[i]] ^ crc>>8
		}
	}
	return crc32.Update(^crc, castagnoli, payload)
}

// seal appends the checksum of a value.
func seal(b Bucket, key string, value []byte) []byte {
	return binary.LittleEndian.AppendUint32(value, checksum(b, key, value))
}

// unsealed returns a value without its checksum.
func unsealed(sealed []byte) []byte {
	n := len(sealed) - checksumBytes
	return sealed[:n:n]
}

func unseal(b Bucket, key string, raw []byte) ([]byte, error) {
	if len(raw) < checksumBytes {
		return nil, &CorruptError{b, key, fmt.Errorf("%d bytes are too short for a checksum", len(raw))}
	}
	payload := unsealed(raw)
	want := binary.LittleEndian.Uint32(raw[len(payload):])
	if got := checksum(b, key, payload); got != want {
		return nil, &CorruptError{b, key, fmt.Errorf("checksum is %08x, expected %08x", got, want)}
	}
	return payload, nil
}
