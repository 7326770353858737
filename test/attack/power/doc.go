// Package power cuts the power of an informer's machine at any moment.
package power
