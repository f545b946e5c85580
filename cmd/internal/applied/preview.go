package applied

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"palyra/cmd/internal/front"
)

// The bounds of a diff that stands before a card.
const (
	previewLines = 200
	previewBytes = 64 << 10
)

// Preview is what a person sees of a layer's changes before the card that asks for them: the
// beginning of the patch that write writes. The patch is of the list whose digest the call names,
// and that palyra-tool compares with what it writes. Each line has a mark, and Terminal.Show cuts
// long ones, so none can pass for one of the card.
func Preview(layer string, write func(io.Writer) error) string {
	var w head
	if err := write(&w); err != nil || w.total == 0 {
		return "" // the card names what there is; an error comes again with the call
	}
	text := w.kept.String()
	if w.total > int64(len(text)) {
		text = text[:strings.LastIndexByte(text, '\n')+1]
	}
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	cut := len(lines) > previewLines || w.total > int64(len(text))
	lines = lines[:min(len(lines), previewLines)]
	var b strings.Builder
	b.WriteString("\n")
	for _, line := range lines {
		b.WriteString(untab("  | "+front.Escape(strings.TrimSuffix(line, "\n"))) + "\n")
	}
	if cut {
		fmt.Fprintf(&b, "  | … and more: palyra changes diff %s\n", front.Escape(layer))
	}
	return b.String()
}

// untab puts blanks in the place of tabs, as a terminal shows them: a line has as many columns as
// characters then.
func untab(line string) string {
	var b strings.Builder
	for i, part := range strings.Split(line, "\t") {
		if i > 0 {
			b.WriteString(strings.Repeat(" ", 8-b.Len()%8))
		}
		b.WriteString(part)
	}
	return b.String()
}

// head keeps the beginning of what is written to it.
type head struct {
	kept  bytes.Buffer
	total int64
}

// Write implements io.Writer.
func (h *head) Write(b []byte) (int, error) {
	h.total += int64(len(b))
	h.kept.Write(b[:min(len(b), previewBytes-h.kept.Len())])
	return len(b), nil
}
