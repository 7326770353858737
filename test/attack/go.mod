module github.com/warmwatch/warmwatch/test/attack

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/hanwen/go-fuse/v2 v2.12.1
)

require golang.org/x/sys v0.47.0 // indirect

replace github.com/warmwatch/warmwatch => ../..
