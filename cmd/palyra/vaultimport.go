package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/crypt/seal"
	"palyra/crypt/vault"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/kernel/tool"
)

// maxImport bounds a file of settings, in bytes.
const maxImport = 1 << 20

const tooLong = "the value has more than 65536 bytes"

// setting is one entry of a file of settings.
type setting struct {
	line  int // where it begins, from 1
	name  string
	value *seal.Secret
}

// vaultImport stores the settings of a file, by a call of vault.set for each.
func (a *app) vaultImport(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	format := command.Value(inv, "format", "")
	if format == "" {
		return nil, fault.New(fault.Usage, "bad_command", "vault import", errors.New("--format is missing")).WithHint("--format dotenv, or --format env")
	}
	prefix := "vault://" + command.Value(inv, "scope", "global") + "/"
	if _, err := vault.ParseRef(prefix + "k"); err != nil {
		return nil, err
	}
	op := fmt.Sprintf("import %q", operand(inv))
	settings, err := a.settings(op, operand(inv), format)
	defer func() {
		for _, s := range settings {
			s.value.Wipe()
		}
	}()
	if err != nil {
		return nil, err
	}
	for _, s := range settings { // all, before the first is stored
		if _, err := vault.ParseRef(prefix + s.name); err != nil {
			return nil, badLine(op, s.line, "the name is no key of a vault")
		}
	}
	dry := inv.Has("dry-run")
	var text strings.Builder
	all := []front.Document{}
	for _, s := range settings {
		ref := prefix + s.name
		short := len(s.value.Bytes()) < vault.MinScrubbed
		d := front.Document{"ref": ref, "size": len(s.value.Bytes()), "short": short}
		if dry {
			fmt.Fprintf(&text, "would store %s, %d bytes\n", ref, len(s.value.Bytes()))
		} else {
			done, out, err := a.vaultCall(ctx, inv, toolproto.VaultSet, &toolproto.VaultSetInput{Ref: ref}, tool.Beside{Values: []*seal.Secret{s.value}})
			if err != nil {
				fmt.Fprintf(a.stderr, "%s%d of %d are stored, and not %s or those after it\n", text.String(), len(all), len(settings), ref)
				return nil, err
			}
			fmt.Fprintf(&text, "stored version %d of %s\n", done.Info.Version, ref)
			d["version"], d["call_id"], d["log_index"] = done.Info.Version, out.CallID, out.LogIndex
		}
		if short {
			fmt.Fprintf(&text, "  less than %d bytes: short enough to be guessed\n", vault.MinScrubbed)
		}
		all = append(all, d)
	}
	if !dry && operand(inv) != "-" {
		fmt.Fprintf(&text, "%s has the values still\n", front.OneLine(operand(inv)))
	}
	return &front.Report{Text: text.String(), Fields: front.Document{"dry_run": dry, "secrets": all}}, nil
}

// settings reads a file, "-" for standard input.
func (a *app) settings(op, path, format string) ([]setting, error) {
	in := a.stdin
	if path != "-" {
		f, err := openRegular(op, path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	b := make([]byte, maxImport+1)
	defer clear(b)
	n, err := io.ReadFull(in, b)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, durable.Fault(op, err)
	}
	if n > maxImport {
		return nil, fault.New(fault.Usage, "too_large", op, fmt.Errorf("more than %d bytes", maxImport))
	}
	settings, err := parseSettings(op, b[:n], format)
	if err == nil && len(settings) == 0 {
		err = fault.New(fault.Usage, "invalid_input", op, errors.New("it has no settings"))
	}
	return settings, err
}

// badLine is an error that quotes nothing of the line: a name may be a piece of a value, too.
func badLine(op string, n int, what string) *fault.Error {
	return fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("line %d: %s", n, what))
}

// parseSettings reads the formats that docs/formats/vault.md specifies. With an error it returns
// what came before, to be wiped.
func parseSettings(op string, b []byte, format string) (out []setting, err error) {
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
		case len(value) > vault.MaxValue:
			what = tooLong
		case len(out) >= vault.MaxSecrets:
			what = fmt.Sprintf("more than %d settings", vault.MaxSecrets)
		default:
			names[name] = true
			out = append(out, setting{n, name, seal.NewSecret(value)})
		}
		clear(value)
		if what != "" {
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
	value = make([]byte, 0, min(len(b), vault.MaxValue+1)) // never grows: a grown one would leave a copy
	for i := 0; i < len(b); i++ {
		if len(value) > vault.MaxValue {
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
