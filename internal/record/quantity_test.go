package record

import (
	"reflect"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// writable finds the Quantities that a method could write to, one by one.
func writable(v reflect.Value, found func(*resource.Quantity)) {
	if v.Kind() != reflect.Map && v.Type() == reflect.TypeFor[resource.Quantity]() {
		if v.CanAddr() {
			found(v.Addr().Interface().(*resource.Quantity))
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			writable(v.Elem(), found)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				writable(v.Field(i), found)
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			writable(v.Index(i), found)
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			writable(i.Value(), found)
		}
	}
}

func isCached(q *resource.Quantity) bool { return reflect.ValueOf(q).Elem().FieldByName("s").Len() > 0 }

// TestNoQuantityOfADecodedObjectIsWrittenToLater is for every type of client-go.
func TestNoQuantityOfADecodedObjectIsWrittenToLater(t *testing.T) {
	quantities := 0
	for gvk, goType := range scheme.Scheme.AllKnownTypes() {
		object := func() any { return reflect.New(goType).Interface() }
		if _, hasMeta := object().(metav1.Object); !hasMeta {
			continue
		}
		filler := newObjectFiller(gvk.String())
		for range 5 {
			obj := object()
			filler.Fill(obj)
			writable(reflect.ValueOf(roundTrip(t, obj, object)), func(q *resource.Quantity) {
				quantities++
				if !isCached(q) {
					t.Errorf("%v: a Quantity has not cached its text", gvk)
				}
			})
		}
	}
	if quantities < 100 {
		t.Errorf("%d quantities met, expected more", quantities)
	}
}

// TestQuantitiesAreFoundWhereverTheyAre is for shapes that client-go's types do
// not have.
func TestQuantitiesAreFoundWhereverTheyAre(t *testing.T) {
	type tree struct {
		Children []*tree
		Q        *resource.Quantity
		hidden   resource.Quantity
	}
	type shapes struct {
		Self    *shapes
		Array   [2]resource.Quantity
		Map     map[string]*resource.Quantity
		Slices  map[string][]tree
		Copied  map[string]resource.Quantity
		Structs map[string]tree
		Nothing map[string]string
	}
	q := func() *resource.Quantity { q := resource.MustParse("1"); return &q }
	v := &shapes{
		Self:   &shapes{Array: [2]resource.Quantity{*q(), *q()}},
		Map:    map[string]*resource.Quantity{"a": q(), "none": nil},
		Slices: map[string][]tree{"a": {{Q: q(), Children: []*tree{{Q: q()}, nil}}}},
		Copied: map[string]resource.Quantity{"a": *q()},
		// As in a ResourceSlice: Devices[].Capacity[name].RequestPolicy.Default.
		Structs: map[string]tree{"a": {Q: q()}},
	}
	v.Slices["a"][0].hidden = *q()
	quantityPlanOf(reflect.TypeOf(v)).cacheText(reflect.ValueOf(v))
	found := 0
	writable(reflect.ValueOf(v), func(q *resource.Quantity) {
		found++
		if !isCached(q) && !q.IsZero() {
			t.Error("a Quantity has not cached its text")
		}
	})
	if found != 8 {
		t.Errorf("%d quantities met", found)
	}
	if p := quantityPlanOf(reflect.TypeFor[*metav1.ObjectMeta]()); p.hasQuantity {
		t.Error("ObjectMeta is said to have quantities")
	}
}

// TestQuantitiesBehindAMapsValue: a ResourceSlice has Quantities behind a pointer in the struct values of a
// map: Go copies the struct, not what it points to.
func TestQuantitiesBehindAMapsValue(t *testing.T) {
	q := resource.MustParse("16Gi")
	obj := &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{Devices: []resourcev1.Device{{
		Name: "gpu",
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {
			Value:         resource.MustParse("32Gi"),
			RequestPolicy: &resourcev1.CapacityRequestPolicy{Default: &q, ValidValues: []resource.Quantity{resource.MustParse("64Gi")}},
		}},
	}}}}
	allCached := func(obj any) {
		t.Helper()
		writable(reflect.ValueOf(obj), func(q *resource.Quantity) {
			if !isCached(q) {
				t.Errorf("a Quantity has not cached its text: %#v", q)
			}
		})
	}
	encoded(t, obj)
	allCached(obj)
	payload, err := appendRecord(nil, 1, obj)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := Parse(payload)
	if err != nil {
		t.Fatal(err)
	}
	out, err := rec.Decode(func() any { return &resourcev1.ResourceSlice{} })
	if err != nil {
		t.Fatal(err)
	}
	allCached(out)
	done := make(chan struct{})
	go func() { // A delta with it is stored.
		defer close(done)
		_, _ = appendRecord(nil, 1, out)
	}()
	p := out.(*resourcev1.ResourceSlice).Spec.Devices[0].Capacity["memory"].RequestPolicy
	_ = p.Default.String() // A handler.
	<-done
}

// TestEncodeCachesAllTexts is for every type of client-go.
func TestEncodeCachesAllTexts(t *testing.T) {
	for gvk, goType := range scheme.Scheme.AllKnownTypes() {
		obj := reflect.New(goType).Interface()
		if goTypeOf(obj).codec != CodecProtobuf {
			continue
		}
		newObjectFiller(gvk.String()).Fill(obj)
		encoded(t, obj)
		writable(reflect.ValueOf(obj), func(q *resource.Quantity) {
			if !isCached(q) {
				t.Errorf("%v: a Quantity has not cached its text", gvk)
			}
		})
	}
}
