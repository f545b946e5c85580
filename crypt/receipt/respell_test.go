package receipt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"palyra/internal/fault"
	"palyra/internal/sample"
)

// respell prints JSON as another program might: members in any order, white space
// between tokens, characters as escapes.
func respell(t testing.TB, b []byte, rng *rand.Rand) []byte {
	t.Helper()
	var out bytes.Buffer
	space := func() { out.WriteString([]string{"", " ", "\n", "\r\n\t", "  "}[rng.IntN(5)]) }
	text := func(s string) {
		out.WriteByte('"')
		for _, r := range s {
			switch {
			case rng.IntN(4) == 0 && r < 0x10000:
				fmt.Fprintf(&out, `\u%04x`, r)
			case rng.IntN(4) == 0 && r == '/':
				out.WriteString(`\/`)
			default:
				q, _ := json.Marshal(string(r))
				out.Write(q[1 : len(q)-1])
			}
		}
		out.WriteByte('"')
	}
	var value func(v any)
	value = func(v any) {
		space()
		defer space()
		switch v := v.(type) {
		case string:
			text(v)
		case []any:
			out.WriteByte('[')
			for i, e := range v {
				if i > 0 {
					out.WriteByte(',')
				}
				value(e)
			}
			out.WriteByte(']')
		case map[string]any:
			names := slices.Sorted(maps.Keys(v))
			rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			out.WriteByte('{')
			for i, n := range names {
				if i > 0 {
					out.WriteByte(',')
				}
				space()
				text(n)
				space()
				out.WriteByte(':')
				value(v[n])
			}
			out.WriteByte('}')
		default:
			t.Fatalf("a bundle has no %T", v)
		}
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	value(v)
	return out.Bytes()
}

// TestRespelled: what jq, Python's json and others make of a receipt says the same;
// what a reader might take for another value does not verify.
func TestRespelled(t *testing.T) {
	w := newWorld(t)
	b := w.sample(t)
	want, err := Verify(b, w.t)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(7, 8))
	for range sample.Of(50, 200) {
		m := respell(t, b, rng)
		got, err := Verify(m, w.t)
		if err != nil || !bytes.Equal(got.Payload, want.Payload) || got.Index != want.Index {
			t.Fatalf("%v\n%s", err, m)
		}
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, b, "", "  "); err != nil {
		t.Fatal(err)
	}
	m := strings.ReplaceAll(indented.String(), "/", `\u002f`)
	if _, err := Verify([]byte(m), w.t); err != nil {
		t.Errorf("indented: %v", err)
	}
	deep := strings.Repeat("[", 40) + strings.Repeat("]", 40)
	for name, bad := range map[string]string{
		"a member twice":           strings.Replace(m, `"mediaType"`, `"mediaType": "x", "mediaType"`, 1),
		"a member twice, escaped":  strings.Replace(m, `"mediaType"`, `"media\u0054ype": "x", "mediaType"`, 1),
		"an unknown member":        strings.Replace(m, `"mediaType"`, `"more": "x", "mediaType"`, 1),
		"an unknown member, null":  strings.Replace(m, `"mediaType"`, `"more": null, "mediaType"`, 1),
		"a member in capitals":     strings.Replace(m, `"mediaType"`, `"MediaType"`, 1),
		"trailing data":            m + " {}",
		"a byte order mark":        "\ufeff" + m,
		"a number for a string":    strings.Replace(m, `"treeSize": "6"`, `"treeSize": 6`, 1),
		"another spelling of six":  strings.Replace(m, `"treeSize": "6"`, `"treeSize": "06"`, 1),
		"a list for a string":      strings.Replace(m, `"treeSize": "6"`, `"treeSize": ["6"]`, 1),
		"null for a string":        strings.Replace(m, `"integratedTime": "0"`, `"integratedTime": null`, 1),
		"base64 without padding":   strings.Replace(m, `="`, `"`, 1),
		"base64 with a line break": strings.Replace(m, `"canonicalizedBody": "`, `"canonicalizedBody": "\n`, 1),
		"another payload":          strings.Replace(m, `"payload": "e`, `"payload": "IHs`, 1),
		"too deep":                 strings.Replace(m, `"mediaType"`, `"more": `+deep+`, "mediaType"`, 1),
		"too large":                m + strings.Repeat(" ", MaxBundle),
	} {
		if bad == m {
			t.Errorf("%s changes nothing", name)
		} else if _, err := Verify([]byte(bad), w.t); fault.KindOf(err) != fault.Integrity {
			t.Errorf("%s: %v", name, err)
		}
	}
}
