package toolproto

import (
	"bytes"
	"encoding/base64"
	"errors"
	"unicode/utf8"

	"palyra/internal/canon"
)

// Content is a part of some bytes. Text holds it if the part is UTF-8 without
// NUL bytes, Base64 otherwise.
type Content struct {
	Binary bool   `json:"binary"`
	Text   string `json:"text"`
	Base64 string `json:"base64"`
}

// ContentOf spells bytes for a result.
func ContentOf(b []byte) Content {
	if bytes.IndexByte(b, 0) < 0 && utf8.Valid(b) {
		return Content{Text: string(b)}
	}
	return Content{Binary: true, Base64: base64.StdEncoding.EncodeToString(b)}
}

// WholeText cuts off an incomplete last character, so that a part of a text is a text. It
// leaves other bytes alone.
func WholeText(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		c := b[len(b)-i]
		if utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) && i < len(b) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

func decodeContent(s, encoding string) ([]byte, error) {
	if encoding != "base64" {
		return []byte(s), nil
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || base64.StdEncoding.EncodeToString(b) != s {
		return nil, usage("invalid_input", "decode content", errors.New("not base64 with padding and without line breaks"))
	}
	return b, nil
}

func checkDigest(s string) error {
	if _, err := canon.ParseDigest(s); err != nil {
		return usage("invalid_input", "read digest", err)
	}
	return nil
}

func checkPath(s string, dot bool) error {
	name, err := ParsePath(s)
	if err == nil && name == "." && !dot {
		err = usage("invalid_input", `read path "."`, errors.New("names the workspace itself"))
	}
	return err
}
