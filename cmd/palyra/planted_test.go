package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"palyra/crypt/receipt"
	"palyra/kernel"
)

func TestPlantedIsTold(t *testing.T) {
	p := &receipt.Planted{Looked: 7, Incomplete: []receipt.Unlooked{{Why: "entries", Folders: 3}},
		Kinds: []receipt.KindCount{{Kind: "hook", Count: 5}, {Kind: "symlink", Count: 1}},
		Found: []receipt.Finding{
			{Path: `.git/hooks/a\x1b[2J`, Kind: "hook", Mode: "100755"},
			{Path: `.git/hooks/b`, Kind: "hook", Mode: "100755", Moved: true},
			// As a later version might have spelled it.
			{Path: "out\u202e", Kind: "symlink", Mode: "120777", Target: "/etc\u202e"},
		}}
	out := &kernel.Outcome{Outcome: receipt.Executed, Delivered: true, Planted: p}
	got := told(out, nil, "", "")
	if want := `5 hook (.git/hooks/a\x1b[2J), 1 symlink (out`; !strings.Contains(got, want) || strings.Count(got, "\n") != 1 || strings.ContainsAny(got, "\x1b\u202e") {
		t.Errorf("told %q", got)
	}
	out.Planted = &receipt.Planted{Looked: 7}
	if got := told(out, nil, "", ""); got != "" {
		t.Errorf("of nothing: %q", got)
	}

	var held [2]bytes.Buffer
	out.Planted = p
	b, err := json.Marshal(execDocument(out, nil, 0, &held, ""))
	if err != nil || !bytes.Contains(b, []byte(`"planted":{"looked":7`)) {
		t.Errorf("document %s, %v", b, err)
	}
}
