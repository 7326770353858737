package record

import (
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
)

// A quantityPlan finds the resource.Quantity fields in values of a type: their
// String method caches the text, which must not happen while another goroutine
// reads the object. Fields in values of maps are left out, because Go copies
// such values for every call. Fields that such values point to are not left out.
type quantityPlan struct {
	isQuantity  bool // The type is Quantity.
	hasQuantity bool // The type is Quantity, or leads to one.
	kind        reflect.Kind
	fields      []quantityField // Of a struct.
	elem        *quantityPlan   // Of a pointer, slice, array or map.
}

type quantityField struct {
	index int
	plan  *quantityPlan
}

var quantityType = reflect.TypeFor[resource.Quantity]()

// quantityPlans caches a *quantityPlan for each reflect.Type.
var quantityPlans sync.Map

func quantityPlanOf(t reflect.Type) *quantityPlan {
	if known, ok := quantityPlans.Load(t); ok {
		return known.(*quantityPlan)
	}
	p := newQuantityPlan(t, map[reflect.Type]*quantityPlan{})
	quantityPlans.Store(t, p)
	return p
}

func newQuantityPlan(t reflect.Type, all map[reflect.Type]*quantityPlan) *quantityPlan {
	if p := all[t]; p != nil {
		return p
	}
	// hasQuantity is true at first, so that a type that contains itself is looked through.
	p := &quantityPlan{kind: t.Kind(), isQuantity: t == quantityType, hasQuantity: true}
	all[t] = p
	switch {
	case p.isQuantity:
	case p.kind == reflect.Struct:
		for f := range t.Fields() {
			if !f.IsExported() {
				continue
			}
			if plan := newQuantityPlan(f.Type, all); plan.hasQuantity {
				p.fields = append(p.fields, quantityField{f.Index[0], plan})
			}
		}
		p.hasQuantity = len(p.fields) > 0
	case p.kind == reflect.Pointer, p.kind == reflect.Slice, p.kind == reflect.Array, p.kind == reflect.Map:
		p.elem = newQuantityPlan(t.Elem(), all)
		p.hasQuantity = p.elem.hasQuantity && (p.kind != reflect.Map || !p.elem.isQuantity)
	default:
		p.hasQuantity = false
	}
	return p
}

// cacheText makes these fields of v cache their text. v is addressable or a pointer.
func (p *quantityPlan) cacheText(v reflect.Value) {
	switch {
	case !p.hasQuantity:
		return
	case p.isQuantity:
		if v.CanAddr() { // Otherwise it is in a map's value.
			_ = v.Addr().Interface().(*resource.Quantity).String()
		}
		return
	}
	switch p.kind {
	case reflect.Struct:
		for _, f := range p.fields {
			f.plan.cacheText(v.Field(f.index))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			p.elem.cacheText(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			p.elem.cacheText(v.Index(i))
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			p.elem.cacheText(i.Value())
		}
	}
}
