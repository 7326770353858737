package checkpoint

import "k8s.io/apimachinery/pkg/util/resourceversion"

// CompareVersions compares two resourceVersions. ok is false if one of them is no number: then they have no order
// (KEP-5504).
func CompareVersions(a, b string) (order int, ok bool) {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return order, err == nil
}

// HasOrder reports whether a resourceVersion can be compared with others.
func HasOrder(resourceVersion string) bool {
	_, ok := CompareVersions(resourceVersion, resourceVersion)
	return ok
}

// Later returns the later of two resourceVersions. If only one of them has an order, it returns that one.
func Later(a, b string) string {
	if order, ok := CompareVersions(a, b); ok && order < 0 || !HasOrder(a) {
		return b
	}
	return a
}
