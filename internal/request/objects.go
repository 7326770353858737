package request

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
)

// parallelObjects is how many requests of one call of [Objects] are under way at a time.
const parallelObjects = 8

// Objects calls list, which makes one List call with its context. The [Transport] asks for each of the items by a list
// of its own, with a field selector for its name: a client that may list may do that. o has the resourceVersion of
// these lists. The client gets one list of all objects that exist, and decodes it as any other.
//
// If the server puts a request off and the client repeats its own, only the missing objects are asked for again.
//
// The error is [ErrNotSeen] as in [Look], and [ErrUnsupported] if the answer is neither in protobuf nor in JSON. Other
// answers of the server come as errors of the client.
func Objects(ctx context.Context, o metav1.ListOptions, items []Item, list func(context.Context) error) error {
	contentType, lists := "", make([][]byte, len(items))
	send := func(t Transport, r *http.Request) (*http.Response, error) {
		requests := make([]*http.Request, len(items))
		for i, item := range items {
			var err error
			if requests[i], err = requestOf(r, o, item); err != nil {
				return nil, err
			}
		}
		answered, refusal, err := sendAll(t.RoundTripper, requests, lists)
		contentType = cmp.Or(answered, contentType)
		if err != nil || refusal != nil {
			return refusal, err
		}
		return joined(r, contentType, lists)
	}
	return exchanged(ctx, &exchange{send: send}, list)
}

// requestOf makes the request for one object from the request for all.
func requestOf(all *http.Request, o metav1.ListOptions, item Item) (*http.Request, error) {
	r := all.Clone(all.Context())
	query := r.URL.Query()
	selector, err := fields.ParseSelector(query.Get("fieldSelector"))
	if err != nil {
		return nil, err
	}
	selector = fields.AndSelectors(selector, fields.OneTermEqualSelector(metav1.ObjectNameField, item.Name))
	if asked, _, _ := ofPath(r.URL.Path); asked.Namespace == "" && item.Namespace != "" {
		selector = fields.AndSelectors(selector, fields.OneTermEqualSelector("metadata.namespace", item.Namespace))
	}
	query.Del("limit")
	query.Del("continue")
	query.Set("fieldSelector", selector.String())
	query.Set("resourceVersion", o.ResourceVersion)
	query.Set("resourceVersionMatch", string(o.ResourceVersionMatch))
	r.URL.RawQuery = query.Encode()
	return r, nil
}

// sendAll sends the requests whose answers are not in lists yet, some at a time, and puts the answers there. If one is
// refused, it returns that answer.
func sendAll(t http.RoundTripper, requests []*http.Request, lists [][]byte) (contentType string, refusal *http.Response, err error) {
	answers, errs := make([]*http.Response, len(requests)), make([]error, len(requests))
	var sent sync.WaitGroup
	slots := make(chan struct{}, parallelObjects)
	for i, r := range requests {
		if lists[i] != nil { // It was answered before.
			continue
		}
		slots <- struct{}{}
		sent.Go(func() {
			answers[i], lists[i], errs[i] = sendOne(t, r)
			<-slots
		})
	}
	sent.Wait()
	for i, resp := range answers {
		switch {
		case errs[i] != nil:
			err, lists[i] = errs[i], nil
		case resp == nil:
		case resp.StatusCode == http.StatusOK:
			contentType = resp.Header.Get("Content-Type")
		default:
			resp.Body = io.NopCloser(bytes.NewReader(lists[i]))
			refusal, lists[i] = resp, nil
		}
	}
	if err != nil {
		refusal = nil
	}
	return contentType, refusal, err
}

func sendOne(t http.RoundTripper, r *http.Request) (*http.Response, []byte, error) {
	resp, err := t.RoundTrip(r)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}

// joined makes one answer of several lists.
func joined(r *http.Request, contentType string, lists [][]byte) (*http.Response, error) {
	var body []byte
	var err error
	switch mediaType(contentType) {
	case runtime.ContentTypeProtobuf:
		body, err = joinProtobuf(lists)
	case runtime.ContentTypeJSON:
		body, err = joinJSON(lists)
	default:
		err = fmt.Errorf("%w: it answers in %q", ErrUnsupported, contentType)
	}
	if err != nil {
		return nil, err
	}
	return answerTo(r, contentType, io.NopCloser(bytes.NewReader(body))), nil
}

// joinProtobuf joins lists. In protobuf two encoded lists, one after the other, are one list with the items of both.
func joinProtobuf(lists [][]byte) ([]byte, error) {
	var typeMeta, all []byte
	for _, list := range lists {
		raw, ok := bytes.CutPrefix(list, protobufPrefix)
		if !ok {
			return nil, errMalformed
		}
		err := eachField(raw, func(number protowire.Number, value []byte) {
			switch number {
			case unknownTypeMeta:
				typeMeta = value
			case unknownRaw:
				all = append(all, value...)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	body := protowire.AppendTag(bytes.Clone(protobufPrefix), unknownTypeMeta, protowire.BytesType)
	body = protowire.AppendBytes(body, typeMeta)
	body = protowire.AppendTag(body, unknownRaw, protowire.BytesType)
	return protowire.AppendBytes(body, all), nil
}

func joinJSON(lists [][]byte) ([]byte, error) {
	var all struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}
	items := []json.RawMessage{}
	for _, list := range lists {
		all.Items = nil // Their memory must not be used again.
		if err := json.Unmarshal(list, &all); err != nil {
			return nil, err
		}
		items = append(items, all.Items...)
	}
	all.Items = items
	return json.Marshal(all)
}
