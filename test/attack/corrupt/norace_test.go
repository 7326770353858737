//go:build !race

package corrupt

const memoryFactor = 1
