package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"palyra/crypt/receipt"
	"palyra/internal/canon"
)

// vectors are receipts whose log has several entries, so that their proofs have
// hashes. The first is changed byte by byte, all are field by field.
var vectors = []string{"executed", "intent", "denied"}

// mutant is a receipt with one change: base[start:end] is replaced.
type mutant struct {
	base       int
	start, end int
	with       []byte
	path, how  string // where and what was done
}

// mutants changes every byte and every field of receipts, of the statements,
// proofs, checkpoints and log entries in them, and has both verifiers judge each.
// Ours accepts only other JSON spellings of the same bundle.
func (b *bench) mutants(folder, readme string) error {
	trust, err := receipt.LoadTrust(filepath.Join(folder, "trust"))
	if err != nil {
		return err
	}
	var bases [][]byte
	var files []string
	var all []mutant
	for i, name := range vectors {
		text, err := os.ReadFile(filepath.Join(folder, name+".txt"))
		if err != nil {
			return err
		}
		_, body, _ := bytes.Cut(text, []byte("\n\n"))
		if _, err := receipt.Verify(body, trust); err != nil {
			return fmt.Errorf("vector %s: %w", name, err)
		}
		ms, err := changes(body, i == 0)
		if err != nil {
			return fmt.Errorf("vector %s: %w", name, err)
		}
		for _, m := range ms {
			m.base = i
			if !bytes.Equal(m.apply(body), body) {
				all = append(all, m)
			}
		}
		file := filepath.Join(b.dir, "base-"+name)
		if err := os.WriteFile(file, body, 0o600); err != nil {
			return err
		}
		bases, files = append(bases, body), append(files, file)
	}
	theirs, err := b.judge(folder, files, all)
	if err != nil {
		return err
	}
	known, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	accepted, respelled := make(map[string]int), 0
	for i, m := range all {
		changed := m.apply(bases[m.base])
		if _, err := receipt.Verify(changed, trust); err == nil {
			// The bundle is a container: another spelling of the same JSON, and nothing else.
			respelled++
			if plain, err := canon.Canonical(changed); err != nil || !bytes.Equal(plain, bases[m.base]) {
				b.problem("palyra accepts %s with %s, %s: [%d:%d] = %.80q", vectors[m.base], m.path, m.how, m.start, m.end, m.with)
			}
			if theirs[i] != 'v' {
				b.problem("palyra accepts what sigstore-js refuses: %s with %s, %s: [%d:%d] = %.80q", vectors[m.base], m.path, m.how, m.start, m.end, m.with)
			}
			continue
		}
		if theirs[i] != 'v' {
			continue
		}
		at := slices.IndexFunc(differences, func(d difference) bool { return d.where(m.path, m.how) })
		if at < 0 || meaning(changed) != meaning(bases[m.base]) {
			b.problem("sigstore-js accepts %s with %s, %s: [%d:%d] = %.80q", vectors[m.base], m.path, m.how, m.start, m.end, m.with)
			continue
		}
		accepted[differences[at].name]++
	}
	n := 0
	for _, d := range differences {
		if accepted[d.name] == 0 {
			b.problem("sigstore-js accepts nothing any more for: %s", d.name)
		}
		if !bytes.Contains(known, []byte("| "+d.name+" |")) {
			b.problem("%s does not list: %s", readme, d.name)
		}
		n += accepted[d.name]
	}
	if respelled == 0 {
		b.problem("palyra accepts no other spelling of a receipt")
	}
	fmt.Printf("%d changed receipts: palyra rejected %d, sigstore-js %d; both accepted %d that spell the same JSON otherwise, and what else it accepted is in the table of %s: %v\n",
		len(all), len(all)-respelled, len(all)-respelled-n, respelled, readme, accepted)
	return nil
}

func (m mutant) apply(base []byte) []byte {
	return slices.Concat(base[:m.start], m.with, base[m.end:])
}

// judge has sigstore-js judge all of them in one process.
func (b *bench) judge(folder string, files []string, all []mutant) ([]byte, error) {
	var in bytes.Buffer
	for _, m := range all {
		fmt.Fprintf(&in, "%d %d %d %s\n", m.base, m.start, m.end, base64.StdEncoding.EncodeToString(m.with))
	}
	trust, err := filepath.Abs(filepath.Join(folder, "trust"))
	if err != nil {
		return nil, err
	}
	c := exec.Command(b.node, append([]string{"mutants.mjs", filepath.Join(trust, "trusted_root.json"), filepath.Join(trust, "att.pub")}, files...)...)
	c.Dir, c.Stdin, c.Stderr = b.js, &in, os.Stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("run mutants.mjs: %w", err)
	}
	if len(out) != len(all) {
		return nil, fmt.Errorf("mutants.mjs judged %d of %d changed receipts", len(out), len(all))
	}
	return out, nil
}

// changes lists the mutants of one receipt.
func changes(body []byte, everyByte bool) ([]mutant, error) {
	root, err := parse(body)
	if err != nil {
		return nil, err
	}
	out := fields("bundle", root, body)
	if everyByte {
		out = append(out, everywhere(body, func(off int) string { return "bundle " + root.at(off) })...)
	}
	var broken []error
	root.all(func(s *span) {
		inner := func(name string, decoded []byte, encode func([]byte) []byte, in *span) {
			var ms []mutant
			if in != nil {
				ms = fields(name, in, decoded)
			}
			if everyByte {
				ms = append(ms, everywhere(decoded, func(int) string { return name })...)
			}
			for _, m := range ms {
				out = append(out, mutant{start: s.start, end: s.end, with: encode(m.apply(decoded)), path: m.path, how: m.how})
			}
		}
		var text string
		switch s.path {
		case "dsseEnvelope.payload", "verificationMaterial.tlogEntries[].canonicalizedBody",
			"verificationMaterial.tlogEntries[].inclusionProof.hashes[]", "verificationMaterial.tlogEntries[].inclusionProof.rootHash",
			"verificationMaterial.tlogEntries[].logId.keyId", "dsseEnvelope.signatures[].sig":
			if err := json.Unmarshal(body[s.start:s.end], &text); err != nil {
				broken = append(broken, err)
				return
			}
			raw, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				broken = append(broken, err)
				return
			}
			name := map[string]string{"dsseEnvelope.payload": "statement", "verificationMaterial.tlogEntries[].canonicalizedBody": "entry"}[s.path]
			var in *span
			if name != "" {
				if in, err = parse(raw); err != nil {
					broken = append(broken, err)
					return
				}
			} else {
				name = "decoded " + s.path
			}
			inner(name, raw, quoted64, in)
		case "verificationMaterial.tlogEntries[].inclusionProof.checkpoint.envelope":
			if err := json.Unmarshal(body[s.start:s.end], &text); err != nil {
				broken = append(broken, err)
				return
			}
			inner("checkpoint", []byte(text), quoted, nil)
			for _, m := range lines([]byte(text)) {
				out = append(out, mutant{start: s.start, end: s.end, with: quoted(m.apply([]byte(text))), path: m.path, how: m.how})
			}
		}
	})
	return out, errors.Join(broken...)
}

func quoted(b []byte) []byte {
	q, _ := json.Marshal(string(b)) // a string always encodes
	return q
}

func quoted64(b []byte) []byte { return quoted([]byte(base64.StdEncoding.EncodeToString(b))) }

// everywhere changes each byte in four ways.
func everywhere(b []byte, where func(int) string) (out []mutant) {
	for i := range b {
		w := where(i)
		out = append(out,
			mutant{start: i, end: i + 1, with: []byte{b[i] ^ 1<<(i%7)}, path: w, how: "a bit flipped"},
			mutant{start: i, end: i + 1, path: w, how: "a byte removed"},
			mutant{start: i, end: i, with: b[i : i+1], path: w, how: "a byte doubled"},
			mutant{start: i, end: i, with: []byte(" "), path: w, how: "a space inserted"})
	}
	return out
}

// lines removes, doubles and swaps the lines of a checkpoint.
func lines(b []byte) (out []mutant) {
	off, last := 0, -1
	for line := range bytes.Lines(b) {
		end := off + len(line)
		out = append(out, mutant{start: off, end: end, path: "checkpoint", how: "a line removed"},
			mutant{start: off, end: off, with: line, path: "checkpoint", how: "a line doubled"})
		if last >= 0 {
			out = append(out, mutant{start: last, end: end, with: slices.Concat(line, b[last:off]), path: "checkpoint", how: "lines swapped"})
		}
		last, off = off, end
	}
	return append(out, mutant{start: 0, end: len(b), with: bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n")), path: "checkpoint", how: "carriage returns"})
}

// fields changes each value of a JSON text: removed, doubled, renamed, of
// another type, empty, longer, spelled otherwise.
func fields(layer string, root *span, b []byte) (out []mutant) {
	root.all(func(s *span) {
		name := layer + " " + s.path
		if s.parent == nil {
			name = layer + " (top)"
		}
		add := func(start, end int, with, how string) {
			out = append(out, mutant{start: start, end: end, with: []byte(with), path: name, how: how})
		}
		val := string(b[s.start:s.end])
		for _, v := range []string{"null", "true", "0", "-1", "1.5", `""`, `"x"`, "[]", "{}", "[" + val + "]", `{"x":` + val + `}`} {
			add(s.start, s.end, v, "replaced by "+strings.ReplaceAll(v, val, "…"))
		}
		if s.parent != nil {
			whole := string(b[s.key:s.end])
			from, to := s.key, s.end
			switch {
			case b[to] == ',':
				to++
			case b[from-1] == ',':
				from--
			}
			add(from, to, "", "removed")
			add(s.key, s.key, whole+",", "doubled")
			if s.parent.kind == '{' {
				add(s.key, s.key, `"unknown":1,`, "an unknown member before it")
				add(s.key, s.start, `"x":`, "renamed")
				add(s.key, s.start, strings.ToUpper(string(b[s.key:s.start])), "named in capitals")
				add(s.key, s.start, snake(string(b[s.key:s.start])), "named in snake case")
			}
			if next := s.next(); next != nil {
				add(s.key, next.end, string(b[next.key:next.end])+","+whole, "order changed")
			}
		}
		if s.kind == 's' {
			in := val[1 : len(val)-1]
			add(s.start, s.end, `"`+in+in+`"`, "text twice")
			add(s.start, s.end, `"`+in+`0"`, "text longer")
			add(s.start, s.end, `"0`+in+`"`, "a zero before it")
			add(s.start, s.end, `"`+strings.TrimRight(in, "=")+`"`, "without padding")
			add(s.start, s.end, `"`+in+`="`, "more padding")
			add(s.start, s.end, `"`+strings.NewReplacer("+", "-", "/", "_").Replace(in)+`"`, "in the URL alphabet")
			add(s.start, s.end, `"`+in+`\n"`, "a newline after it")
			if len(in) > 0 && in[0] != '\\' {
				add(s.start, s.end, fmt.Sprintf(`"\u%04x%s"`, in[0], in[1:]), "an escaped character")
			}
			add(s.start, s.end, in, "unquoted")
			for _, n := range []string{"0", "1", "2", "5", "7", "4294967300", "9223372036854775807", "18446744073709551620"} {
				add(s.start, s.end, `"`+n+`"`, "another number in a string")
			}
		}
	})
	return out
}

// next returns the value after s in the same object or list.
func (s *span) next() *span {
	i := slices.Index(s.parent.children, s)
	if i+1 < len(s.parent.children) {
		return s.parent.children[i+1]
	}
	return nil
}

func snake(s string) string {
	var out strings.Builder
	for _, r := range s {
		if r >= 'A' && r <= 'Z' {
			out.WriteByte('_')
			r += 'a' - 'A'
		}
		out.WriteRune(r)
	}
	return out.String()
}
