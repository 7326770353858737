package debug

import (
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

func TestMain(m *testing.M) { testsupport.Main(m, nil) }
