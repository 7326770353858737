//go:build race

package corrupt

// memoryFactor is by how much the race detector multiplies memory, about.
const memoryFactor = 6
