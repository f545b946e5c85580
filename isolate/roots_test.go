package isolate_test

import (
	"bytes"
	"encoding/pem"
	"path"
	"slices"
	"strings"
	"testing"

	"palyra/isolate"
)

func TestCheckRoots(t *testing.T) {
	block := func(kind string, n int) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes.Repeat([]byte{'c'}, n)})
	}
	one := block("CERTIFICATE", 600)
	for name, c := range map[string]struct {
		text []byte
		ok   bool
	}{
		"one":            {one, true},
		"none":           {nil, false},
		"empty":          {block("CERTIFICATE", 0), false},
		"two":            {slices.Concat(one, one), false},
		"a key":          {block("PRIVATE KEY", 600), false},
		"a key behind":   {slices.Concat(one, block("EC PRIVATE KEY", 60)), false},
		"a key in front": {slices.Concat(block("EC PRIVATE KEY", 60), one), false},
		"words in front": {slices.Concat([]byte("the authority\n"), one), false},
		"words behind":   {slices.Concat(one, []byte("the authority\n")), false},
		"headers":        {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"a": "b"}, Bytes: []byte("c")}), false},
		"other lines":    {bytes.Replace(one, []byte("\n"), []byte("\r\n"), -1), false},
		"too large":      {block("CERTIFICATE", isolate.MaxRoots), false},
	} {
		if err := isolate.CheckRoots(c.text); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRootsEnv(t *testing.T) {
	env := isolate.RootsEnv()
	if len(env) == 0 || !slices.IsSorted(env) || path.Dir(isolate.RootsFile) != isolate.RootsDir {
		t.Errorf("%q in %s", env, isolate.RootsDir)
	}
	for _, v := range env {
		if !strings.HasSuffix(v, "="+isolate.RootsFile) {
			t.Errorf("%s leads elsewhere", v)
		}
	}
	env[0] = "changed"
	if isolate.RootsEnv()[0] == "changed" {
		t.Error("a caller can change the variables of all calls")
	}
}
