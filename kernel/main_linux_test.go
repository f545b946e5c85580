package kernel

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(asVictim); spec != "" {
		os.Exit(beVictim(spec))
	}
	code := m.Run()
	if path, err := cellBinary(); err == nil && os.Getenv("PALYRA_TEST_CELL") == "" {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}
