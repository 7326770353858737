// Command bench measures warmwatch beside client-go's informer, on a real API
// server. See README.md.
package main
