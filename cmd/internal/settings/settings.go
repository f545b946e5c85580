// Package settings reads files of settings that are to become secrets of a vault, for palyra and
// its client of palyrad alike. docs/formats/vault.md specifies the formats.
//
//	all, err := settings.Read("import", path, stdin, settings.Format{Name: "dotenv", Scope: "global"})
//	defer all.Wipe()
//
// A file is read and checked whole. An error names a line by its number and quotes nothing of it:
// a name may be a piece of a value, too.
//
// It doesn't protect values from this process: wiping is best effort.
package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// The bounds of a file: bytes, settings, and bytes of a value and of a name. The last three are the
// vault's, which palyra's client doesn't link; a test of cmd/palyra compares what is exported.
const (
	maxFile  = 1 << 20
	maxAll   = 1000
	MaxValue = 64 << 10
	maxName  = 128
)

const tooLong = "the value has more than 65536 bytes"

// The formats.
const (
	Dotenv = "dotenv"
	Env    = "env"
	// Export is the JSON in an export of a vault, as age has decrypted it.
	Export = "export"
)

// Format says how a file is read.
type Format struct {
	Name  string
	Scope string // of the secrets; not for Export, which names them
}

// Setting is one secret to be.
type Setting struct {
	Ref     string // the vault checks it
	Value   []byte
	Expires string // a time in RFC 3339; "": never

	line int // where it begins, from 1
	name string
}

// When returns Expires as the tool vault.import has it: a time, or never.
func (s *Setting) When() string {
	if s.Expires == "" {
		return "never"
	}
	return s.Expires
}

// Settings are those of a file.
type Settings []Setting

// Wipe clears the values.
func (s Settings) Wipe() {
	for i := range s {
		clear(s[i].Value)
	}
}

// Read reads a file, "-" for stdin. Without an error there is at least one setting.
func Read(op, path string, stdin io.Reader, f Format) (Settings, error) {
	in := stdin
	if path != "-" {
		file, err := OpenRegular(op, path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	most := maxFile
	if f.Name == Export {
		most = MaxExport
	}
	b := make([]byte, most+1)
	defer clear(b)
	n, err := io.ReadFull(in, b)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, durable.Fault(op, err)
	}
	if n > most {
		return nil, fault.New(fault.Usage, "too_large", op, fmt.Errorf("more than %d bytes", most))
	}
	return Parse(op, b[:n], f)
}

// Parse reads the content of a file, which stays the caller's to wipe.
func Parse(op string, b []byte, f Format) (Settings, error) {
	read := parseLines
	if f.Name == Export {
		read = parseExport
	}
	out, err := read(op, b, f.Name)
	if err == nil && len(out) == 0 {
		err = fault.New(fault.Usage, "invalid_input", op, errors.New("it has no settings"))
	}
	if err != nil {
		out.Wipe()
		return nil, err
	}
	for i := range out {
		if f.Name != Export {
			out[i].Ref = "vault://" + f.Scope + "/" + out[i].name
		}
	}
	return out, nil
}

// badLine is an error that quotes nothing of the line.
func badLine(op string, n int, what string) *fault.Error {
	return fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("line %d: %s", n, what))
}

// MaxExport bounds an export, in bytes: 256 values of 64 KiB in base64, and their names.
const MaxExport = 24 << 20

// export is the content of an export of a vault.
type export struct {
	Version int    `json:"version"`
	Vault   string `json:"vault"`
	Secrets []struct {
		Ref     string     `json:"ref"`
		Version uint64     `json:"version"`
		Created time.Time  `json:"created"`
		Expires *time.Time `json:"expires"`
		Value   []byte     `json:"value"`
	} `json:"secrets"`
}

// parseExport reads an export. Versions are those of the vault that it's read into.
func parseExport(op string, b []byte, _ string) (out Settings, err error) {
	var x export
	defer func() {
		for i := range x.Secrets {
			clear(x.Secrets[i].Value)
		}
	}()
	bad := func(why string) (Settings, error) {
		return out, fault.New(fault.Usage, "invalid_input", op, errors.New(why)).
			WithHint("want what age -d makes of an export: age -d -i KEY all.age | palyra vault import --format export -")
	}
	if err := canon.Decode(b, &x, canon.Limits{Bytes: MaxExport, Depth: 4}); err != nil || x.Version != 1 {
		return bad("it is no export of version 1") // the error may quote a value
	}
	seen := make(map[string]bool)
	for i, s := range x.Secrets {
		switch {
		case len(out) >= maxAll:
			return bad(fmt.Sprintf("more than %d secrets", maxAll))
		case seen[s.Ref]:
			return bad(fmt.Sprintf("secret %d was there before", i+1))
		case len(s.Value) == 0 || len(s.Value) > MaxValue:
			return bad(fmt.Sprintf("the value of secret %d has %d bytes", i+1, len(s.Value)))
		}
		seen[s.Ref] = true
		n := Setting{Ref: s.Ref, Value: bytes.Clone(s.Value), line: i + 1}
		if s.Expires != nil {
			n.Expires = s.Expires.UTC().Format(time.RFC3339)
		}
		out = append(out, n)
	}
	return out, nil
}

// parseLines reads dotenv and env. With an error it returns
// what came before, to be wiped.
func parseLines(op string, b []byte, format string) (out Settings, err error) {
	next := dotenvEntry
	end := byte('\n')
	if format == "env" {
		if next = envEntry; bytes.IndexByte(b, 0) >= 0 {
			end = 0
		}
	}
	names := make(map[string]bool)
	for n := 1; len(b) > 0; {
		name, value, rest, what := next(b, end)
		if what != "" {
			return out, badLine(op, n, what)
		}
		switch {
		case name == "":
		case names[name]:
			what = "the name was there before"
		case len(value) == 0:
			what = "the value is empty, which the vault doesn't keep"
		case len(name) > maxName:
			what = "the name is no key of a vault"
		case len(value) > MaxValue:
			what = tooLong
		case len(out) >= maxAll:
			what = fmt.Sprintf("more than %d settings", maxAll)
		default:
			names[name] = true
			out = append(out, Setting{Value: value, line: n, name: name})
		}
		if what != "" {
			clear(value)
			return out, badLine(op, n, what)
		}
		n += bytes.Count(b[:len(b)-len(rest)], []byte{end})
		b = rest
	}
	return out, nil
}

// envEntry reads NAME=VALUE as it stands, up to end.
func envEntry(b []byte, end byte) (name string, value, rest []byte, what string) {
	line, rest, _ := bytes.Cut(b, []byte{end})
	n := nameLen(line)
	if n == 0 || n == len(line) || line[n] != '=' {
		return "", nil, nil, "want NAME=VALUE"
	}
	return string(line[:n]), bytes.Clone(line[n+1:]), rest, ""
}

// nameLen returns the length of the name that b begins with.
func nameLen(b []byte) int {
	for i, c := range b {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || (c < '0' || c > '9') && c != '.' && c != '-') {
			return i
		}
	}
	return len(b)
}

// dotenvEntry reads a blank line, a comment, or NAME=VALUE.
func dotenvEntry(b []byte, _ byte) (name string, value, rest []byte, what string) {
	b = bytes.TrimLeft(b, " \t")
	if rest, ok := lineEnd(b, true); ok {
		return "", nil, rest, ""
	}
	if after, ok := bytes.CutPrefix(b, []byte("export")); ok && len(after) > 0 && (after[0] == ' ' || after[0] == '\t') {
		b = bytes.TrimLeft(after, " \t")
	}
	n := nameLen(b)
	if n == 0 || n == len(b) || b[n] != '=' {
		return "", nil, nil, "want NAME=VALUE"
	}
	name, b = string(b[:n]), b[n+1:]
	if len(b) > 0 && (b[0] == '\'' || b[0] == '"') {
		value, b, what = inQuotes(b)
	} else {
		value, b, what = bare(b)
	}
	if what != "" {
		clear(value)
		return "", nil, nil, what
	}
	after := bytes.TrimLeft(b, " \t")
	rest, ok := lineEnd(after, len(after) < len(b))
	if !ok {
		clear(value)
		return "", nil, nil, "there is more behind the value"
	}
	return name, value, rest, ""
}

// lineEnd takes a comment, if one may stand here, and the end of a line or file off b.
func lineEnd(b []byte, comment bool) (rest []byte, ok bool) {
	if comment && len(b) > 0 && b[0] == '#' {
		_, rest, _ = bytes.Cut(b, []byte("\n"))
		return rest, true
	}
	if len(b) == 0 {
		return nil, true
	}
	b = bytes.TrimPrefix(b, []byte("\r"))
	return bytes.CutPrefix(b, []byte("\n"))
}

// bare reads a value without quotes, and leaves the blanks behind it. It refuses the characters
// that programs read differently there.
func bare(b []byte) (value, rest []byte, what string) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		end = len(b)
	}
	if end > 0 && b[end-1] == '\r' {
		end--
	}
	line := b[:end]
	for i := 1; i < len(line); i++ {
		if line[i] == '#' && (line[i-1] == ' ' || line[i-1] == '\t') {
			line = line[:i]
		}
	}
	for _, c := range line {
		switch {
		case strings.IndexByte("#'\"`$\\", c) >= 0:
			return nil, nil, "a value with one of # ' \" ` $ \\ stands in quotes"
		case c < ' ' && c != '\t', c == 0x7f:
			return nil, nil, "a value with control characters stands in quotes"
		}
	}
	line = bytes.TrimRight(line, " \t")
	if len(line) > 0 && (line[0] == ' ' || line[0] == '\t') {
		return nil, nil, "a blank behind = stands in quotes"
	}
	return bytes.Clone(line), b[len(line):], ""
}

// inQuotes reads a value in quotes, which may have several lines.
func inQuotes(b []byte) (value, rest []byte, what string) {
	quote, b := b[0], b[1:]
	end := bytes.IndexByte(b, quote)
	if quote == '\'' {
		if end < 0 {
			return nil, nil, "the quote isn't closed"
		}
		return bytes.Clone(b[:end]), b[end+1:], ""
	}
	value = make([]byte, 0, min(len(b), MaxValue+1)) // never grows: a grown one would leave a copy
	for i := 0; i < len(b); i++ {
		if len(value) > MaxValue {
			return value, nil, tooLong
		}
		switch c := b[i]; c {
		case '"':
			return value, b[i+1:], ""
		case '$', '`':
			return value, nil, "$ and ` in double quotes want a backslash before them, or single quotes"
		case '\\':
			if i++; i == len(b) {
				return value, nil, "the quote isn't closed"
			}
			at := strings.IndexByte("nrt\"\\$`", b[i])
			if at < 0 {
				return value, nil, "unknown escape in double quotes"
			}
			value = append(value, "\n\r\t\"\\$`"[at])
		default:
			value = append(value, c)
		}
	}
	return value, nil, "the quote isn't closed"
}
