//go:build !unix

package corrupt

import "os"

var quit = os.Kill
