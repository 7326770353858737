package warmwatch_test

import (
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// programs run in processes of their own: to crash, or to hold a file.
var programs = testsupport.Programs{}

func TestMain(m *testing.M) { testsupport.Main(m, programs) }
