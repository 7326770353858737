package persist

import "encoding/json"

// AppendJSON is [Value.AppendTo] for a value that is stored as JSON.
func AppendJSON(dst []byte, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return append(dst, b...), err
}

// ReadJSON returns the value of an item that [AppendJSON] has encoded, or while it is in memory the one that
// was put, as a T or a *T. It must not be changed. Errors are those of [Item.Payload], also where something else was
// put, or a [CorruptError].
func ReadJSON[T any](it *Item) (*T, error) {
	switch v := any(it.Value).(type) {
	case *T:
		return v, nil
	case T:
		return &v, nil
	}
	payload, err := it.Payload()
	if err != nil {
		return nil, err
	}
	v := new(T)
	if err := json.Unmarshal(payload, v); err != nil {
		return nil, &CorruptError{it.bucket, it.Key, err}
	}
	return v, nil
}
