package persist

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const checksumBytes = 4

func checksum(b Bucket, key string, payload []byte) uint32 {
	// The key is covered too: a value must not be taken for another key's.
	crc := ^uint32(0)
	for _, s := range [...]string{b.Space, "/", b.Name, "/", key} {
		for i := range len(s) { // crc32.Update wants slices, which are copies.
			crc = castagnoli[byte(crc)^s[i]] ^ crc>>8
		}
	}
	return crc32.Update(^crc, castagnoli, payload)
}

// seal appends the checksum of buf[start:].
func seal(buf []byte, start int, b Bucket, key string) []byte {
	return binary.LittleEndian.AppendUint32(buf, checksum(b, key, buf[start:]))
}

func unseal(b Bucket, key string, raw []byte) ([]byte, error) {
	if bytes.Equal(raw, unencodableValue) {
		return nil, &CorruptError{b, key, errors.New("the process that put it could not encode it")}
	}
	if len(raw) < checksumBytes {
		return nil, &CorruptError{b, key, fmt.Errorf("%d bytes are too short for a checksum", len(raw))}
	}
	payload := raw[: len(raw)-checksumBytes : len(raw)-checksumBytes]
	want := binary.LittleEndian.Uint32(raw[len(payload):])
	if got := checksum(b, key, payload); got != want {
		return nil, &CorruptError{b, key, fmt.Errorf("checksum is %08x, expected %08x", got, want)}
	}
	return payload, nil
}
