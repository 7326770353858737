package record

import (
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
)

// A quantityPlan finds the resource.Quantity fields in values of a type: their
// String method caches the text, which must not happen while another goroutine
// reads the object. Fields in values of maps are left out, because Go copies
// them for every call, but not fields that such values point to.
type quantityPlan struct {
	isQuantity  bool // The type is Quantity.
	hasQuantity bool // It is, or leads to one.
	// inSlice says that it leads to a slice of Quantities, whose elements generated Size
	// methods copy.
	inSlice bool
	kind    reflect.Kind
	fields  []quantityField // Of a struct.
	elem    *quantityPlan   // Of a pointer, slice, array or map.
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
	all := map[reflect.Type]*quantityPlan{}
	p := newQuantityPlan(t, all)
	for changed := true; changed; { // Types may contain themselves.
		changed = false
		for _, p := range all {
			if has, inSlice := p.reaches(); has && !p.hasQuantity || inSlice && !p.inSlice {
				p.hasQuantity, p.inSlice, changed = p.hasQuantity || has, p.inSlice || inSlice, true
			}
		}
	}
	for _, p := range all {
		kept := p.fields[:0]
		for _, f := range p.fields {
			if f.plan.hasQuantity {
				kept = append(kept, f)
			}
		}
		p.fields = kept
	}
	quantityPlans.Store(t, p)
	return p
}

func newQuantityPlan(t reflect.Type, all map[reflect.Type]*quantityPlan) *quantityPlan {
	if p := all[t]; p != nil {
		return p
	}
	p := &quantityPlan{kind: t.Kind(), isQuantity: t == quantityType, hasQuantity: t == quantityType}
	all[t] = p
	switch {
	case p.isQuantity:
	case p.kind == reflect.Struct:
		for f := range t.Fields() {
			if f.IsExported() {
				p.fields = append(p.fields, quantityField{f.Index[0], newQuantityPlan(f.Type, all)})
			}
		}
	case p.kind == reflect.Pointer, p.kind == reflect.Slice, p.kind == reflect.Array:
		p.elem = newQuantityPlan(t.Elem(), all)
	case p.kind == reflect.Map:
		if t.Elem() != quantityType {
			p.elem = newQuantityPlan(t.Elem(), all)
		}
	}
	return p
}

// reaches returns hasQuantity and inSlice as they follow from what p leads to.
func (p *quantityPlan) reaches() (hasQuantity, inSlice bool) {
	for _, f := range p.fields {
		hasQuantity, inSlice = hasQuantity || f.plan.hasQuantity, inSlice || f.plan.inSlice
	}
	if p.elem != nil {
		hasQuantity = hasQuantity || p.elem.hasQuantity
		inSlice = inSlice || p.elem.inSlice || p.elem.isQuantity && p.kind == reflect.Slice
	}
	return hasQuantity, inSlice
}

// cacheText makes these fields of v, which is addressable or a pointer, cache
// their text.
func (p *quantityPlan) cacheText(v reflect.Value) {
	switch {
	case !p.hasQuantity:
		return
	case p.isQuantity:
		if v.CanAddr() { // Else it is in a map's value.
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
