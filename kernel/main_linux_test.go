package kernel

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv("PALYRA_TEST_PRINT_ARGV") != "" {
		printArgv()
		return
	}
	os.Exit(m.Run())
}
