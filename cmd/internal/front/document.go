package front

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf16"
	"unicode/utf8"

	"palyra/internal/fault"
)

// Document is the output of a command with --json: one JSON object with sorted keys and
// "schema": "palyra.<cmd>/v1". A field is added, never changed in meaning; a change in
// meaning is a v2.
type Document map[string]any

// Write prints d on w, indented, keys sorted at every depth.
func (d Document) Write(w io.Writer, cmd string) error {
	out := Document{"schema": "palyra." + cmd + "/v1"}
	for k, v := range d {
		out[k] = v
	}
	// Through generic maps and back: struct fields come in declaration order,
	// map keys come sorted. Numbers stay text so that none loses a digit.
	b, err := json.Marshal(out)
	if err != nil {
		return fmt.Errorf("encode %s document: %w", cmd, err)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var generic any
	if err := dec.Decode(&generic); err != nil {
		return fmt.Errorf("encode %s document: %w", cmd, err)
	}
	return WriteJSON(w, generic, "  ")
}

// WriteJSON writes v and a line feed, on one line or indented. It writes all JSON that a
// command prints: in printable ASCII, with \u for every other character, so that a title or
// an argument in it draws nothing on a terminal.
func WriteJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(plain(b.Bytes()))
	return err
}

// plain spells the strings of a JSON text in printable ASCII. Outside of them
// JSON has nothing else.
func plain(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for _, r := range string(text) {
		switch {
		case r < 0x7f:
			out = append(out, byte(r))
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, hi, lo)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

// ErrorFields is the form of an error in a document.
func ErrorFields(err error) Document {
	if err == nil {
		return nil
	}
	d := Document{"kind": fault.KindOf(err).String(), "reason": fault.ReasonOf(err), "message": err.Error()}
	if h := Hint(err); h != "" {
		d["hint"] = h
	}
	return d
}

// OutputFields holds a program's output: as text if it is UTF-8, else as base64, since JSON
// couldn't carry it.
func OutputFields(b []byte) Document {
	if utf8.Valid(b) {
		return Document{"encoding": "utf-8", "data": string(b)}
	}
	return Document{"encoding": "base64", "data": base64.StdEncoding.EncodeToString(b)}
}
