package request

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
)

// ErrUnsupported is returned if the server does not answer in the form that was asked for.
var ErrUnsupported = errors.New("the server does not answer in the form that was asked for")

// An Item identifies an object of a list, and its version.
type Item struct{ Namespace, Name, UID, ResourceVersion string }

// acceptMetadata asks for the metadata of objects. kube-apiserver has it in protobuf for custom
// resources, too.
const acceptMetadata = runtime.ContentTypeProtobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// Metadata calls list, which makes one List call with its context. The [Transport] asks for the metadata of the objects
// instead. The answer is read as a stream: each is called with each object. An error of each ends the reading and is
// returned. If the server answers in pages, all pages are read if they are of one version. Metadata returns the
// resourceVersion of the list.
//
// The error is [ErrNotSeen] as in [Look], and [ErrUnsupported] if the answer is no list of metadata in protobuf. Other
// answers of the server come as errors of the client.
func Metadata(ctx context.Context, list func(context.Context) error, each func(Item) error) (resourceVersion string, err error) {
	var p *pages // Nil before there is an answer.
	var failed error
	send := func(t Transport, r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())
		r.Header.Set("Accept", acceptMetadata)
		asked := newPages(Transport{RoundTripper: t.RoundTripper}, r) // Without a Link the list is always compressed.
		defer asked.close()
		refusal, err := asked.begin()
		if refusal != nil || asked.body == nil {
			return refusal, err
		}
		if p, failed = asked, err; err == nil {
			failed = p.eachMetadata(each)
		}
		return nil, errAnswered
	}
	err = exchanged(ctx, &exchange{send: send}, list)
	switch {
	case failed != nil:
		return "", failed
	case err == nil: // Somebody has turned our error into an answer, or there was no list.
		return "", ErrNotSeen
	case p == nil:
		return "", err
	}
	return p.resourceVersion, nil
}

// eachMetadata reads the metadata of objects.
func (p *pages) eachMetadata(each func(Item) error) error {
	for {
		raw, err := p.next()
		if err != nil && err != io.EOF { //nolint:errorlint // It is returned as it is.
			return err
		}
		list, ok := p.list.(*protobufList)
		if !ok || list.Kind != "PartialObjectMetadataList" {
			return fmt.Errorf("%w: it answers with a %s in %s", ErrUnsupported, p.list.head().Kind, p.list.contentType())
		}
		if err != nil {
			return nil
		}
		item, err := parseItem(raw)
		if err == nil {
			err = each(item)
		}
		if err != nil {
			return err
		}
	}
}

// parseItem reads an object. Field 1 of each is its metadata.
func parseItem(object []byte) (item Item, err error) {
	var failed error
	err = eachField(object, func(number protowire.Number, value []byte) {
		if number != objectMeta {
			return
		}
		failed = eachField(value, func(number protowire.Number, value []byte) {
			switch number {
			case metaName:
				item.Name = string(value)
			case metaNamespace:
				item.Namespace = string(value)
			case metaUID:
				item.UID = string(value)
			case metaResourceVersion:
				item.ResourceVersion = string(value)
			}
		})
	})
	return item, errors.Join(err, failed)
}
