package persist

import "encoding/json"

// JSON encodes a value for [ReadJSON]. It panics if v has no JSON: it is for structs of texts and numbers.
func JSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// ReadJSON decodes a value that is JSON. It returns an error of [Item.Payload], or a [CorruptError].
func ReadJSON[T any](it *Item) (v T, err error) {
	payload, err := it.Payload()
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(payload, &v); err != nil {
		return v, &CorruptError{it.bucket, it.Key, err}
	}
	return v, nil
}
