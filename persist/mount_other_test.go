//go:build !linux

package persist

import "errors"

func mountTmpfs(string, string) (func() error, error) { return nil, errors.ErrUnsupported }
