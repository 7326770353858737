package contract_test

import (
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
)

// programs run in processes of their own: to crash, or to hold a file.
var programs = testsupport.Programs{"hold": process.HoldProgram}

func TestMain(m *testing.M) { testsupport.Main(m, programs) }
