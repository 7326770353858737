//go:build !linux

package persist

import "errors"

func mountTmpfs(string, string) (func() error, error) { return nil, errors.ErrUnsupported }

func remountTmpfs(string, bool) error { return errors.ErrUnsupported }

func mountBind(_, _ string) (func() error, error) { return nil, errors.ErrUnsupported }
