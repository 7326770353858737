package corrupt

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/warmwatch/warmwatch/internal/testsupport/apiserver"
)

// kind is a form in which objects are stored.
type kind string

const (
	typed      kind = "typed"        // ConfigMaps.
	untyped    kind = "unstructured" // Custom resources.
	colors          = 5
	names           = 400
	smallBytes      = 500   // A small object has up to so much.
	largeBytes      = 40000 // A large one does, longer than a page.
)

var kinds = []kind{typed, untyped}

// newServer returns a server of a kind.
func newServer(k kind, source rand.Source) *apiserver.Server {
	o := apiserver.Options{Rand: rand.New(source), Names: names, Fill: fill}
	if k == untyped {
		o.Example = untyped.example()
		o.List = &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "WidgetList"}}
	}
	return apiserver.New(o)
}

func (k kind) example() apiserver.Object {
	if k == typed {
		return &corev1.ConfigMap{}
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget"}}
}

func fill(rng *rand.Rand, obj apiserver.Object) {
	color, sizeBytes := colorName(rng.IntN(colors)), rng.IntN(smallBytes)
	if rng.IntN(25) == 0 {
		sizeBytes = largeBytes/4 + rng.IntN(largeBytes*3/4)
	}
	filling := strings.Repeat(fmt.Sprintf("%07s ", obj.GetResourceVersion()), sizeBytes/8)
	switch o := obj.(type) {
	case *corev1.ConfigMap:
		o.Data = map[string]string{"color": color, "filling": filling}
	case *unstructured.Unstructured:
		o.Object["spec"] = map[string]any{"color": color, "filling": filling, "weight": int64(versionOf(o))}
	}
}

func colorName(c int) string { return fmt.Sprint("c", c) }

// source is that of the changes of an image's server. Each kind has its own.
func (im *image) source(k kind) *rand.PCG {
	return rand.NewPCG(im.Seed, uint64(slices.Index(kinds, k)))
}

// server returns a server that is where the image was made. What it does then is up to rng.
func (im *image) server(k kind, rng *rand.Rand) *apiserver.Server {
	source := im.source(k)
	s := newServer(k, source)
	s.Advance(im.Servers[k].Version)
	source.Seed(rng.Uint64(), rng.Uint64())
	return s
}
