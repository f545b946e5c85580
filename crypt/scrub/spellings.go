package scrub

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"unicode/utf16"
	"unicode/utf8"
)

// spellings returns how a value may stand in text, each once, Min bytes at least.
func spellings(value []byte) (all [][]byte) {
	add := func(p []byte) {
		if len(p) < Min {
			return
		}
		for _, q := range all {
			if bytes.Equal(p, q) {
				return
			}
		}
		all = append(all, bytes.Clone(p))
	}
	forms := [][]byte{value}
	if t := bytes.TrimRight(value, "\r\n"); len(t) >= Min && len(t) < len(value) {
		forms = append(forms, t)
	}
	for _, v := range forms {
		add(v)
		add(bytes.ReplaceAll(v, []byte("\n"), []byte("\r\n")))
		for _, e := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			for lead := range 3 {
				inBase64(e, lead, v, add)
			}
		}
		x := []byte(hex.EncodeToString(v))
		add(x)
		add(bytes.ToUpper(x))
		percent(v, add)
		if utf8.Valid(v) {
			inJSON(v, add)
		}
	}
	return all
}

// inBase64 adds the characters that v alone decides where lead bytes come before it, alone and with
// those that end the text.
func inBase64(e *base64.Encoding, lead int, v []byte, add func([]byte)) {
	whole := []byte(e.EncodeToString(append(make([]byte, lead), v...)))
	if lead > 0 {
		whole = whole[lead+1:] // of 8 or 16 bits before v, in characters of 6
	}
	add(whole)
	bare := bytes.TrimRight(whole, "=")
	add(bare)
	if (lead+len(v))%3 != 0 {
		add(bare[:len(bare)-1]) // the last one has bits of what follows
	}
}

// percent adds v as a part of URLs.
func percent(v []byte, add func([]byte)) {
	var every bytes.Buffer
	for _, c := range v {
		fmt.Fprintf(&every, "%%%02X", c)
	}
	for _, p := range [][]byte{[]byte(url.QueryEscape(string(v))), []byte(url.PathEscape(string(v))), every.Bytes(),
		bytes.ReplaceAll([]byte(url.QueryEscape(string(v))), []byte("+"), []byte("%20"))} {
		add(p)
		add(lowerEscapes(p))
	}
}

func lowerEscapes(p []byte) []byte {
	q := bytes.Clone(p)
	for i := 0; i+2 < len(q); i++ {
		if q[i] == '%' {
			copy(q[i+1:i+3], bytes.ToLower(q[i+1:i+3]))
			i += 2
		}
	}
	return q
}

// inJSON adds v as the content of a string: with and without the escapes that HTML wants, with
// escaped slashes, and in ASCII alone.
func inJSON(v []byte, add func([]byte)) {
	b, err := json.Marshal(string(v))
	if err != nil {
		return
	}
	add(b[1 : len(b)-1])
	var plain bytes.Buffer
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	if enc.Encode(string(v)) != nil {
		return
	}
	p := bytes.TrimSuffix(plain.Bytes(), []byte("\n"))
	p = p[1 : len(p)-1]
	add(p)
	add(bytes.ReplaceAll(p, []byte("/"), []byte(`\/`)))
	var ascii bytes.Buffer
	for len(p) > 0 {
		c, n := utf8.DecodeRune(p)
		switch {
		case c < utf8.RuneSelf:
			ascii.WriteByte(byte(c))
		case c > 0xffff:
			hi, lo := utf16.EncodeRune(c)
			fmt.Fprintf(&ascii, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&ascii, `\u%04x`, c)
		}
		p = p[n:]
	}
	add(ascii.Bytes())
	add(upperEscapes(ascii.Bytes()))
}

func upperEscapes(p []byte) []byte {
	q := bytes.Clone(p)
	for i := 0; i+5 < len(q); i++ {
		if q[i] == '\\' {
			if q[i+1] == 'u' {
				copy(q[i+2:i+6], bytes.ToUpper(q[i+2:i+6]))
			}
			i++
		}
	}
	return q
}
