package mcp

import (
	"strings"
	"testing"

	"palyra/internal/fault"
)

func TestExport(t *testing.T) {
	for format, want := range map[string]string{
		FormatOpenAI:    `{"function":{"description":"Reads.","name":"fs_read_file","parameters":{`,
		FormatAnthropic: `{"description":"Reads.","input_schema":{`,
		FormatMCP:       `"name":"call_wait"`,
	} {
		b, err := Export(t.Context(), newDaemon(), format)
		if err != nil || !strings.Contains(string(b), want) || strings.Contains(string(b), "call_wait") != (format == FormatMCP) {
			t.Errorf("%s: %v\n%s", format, err, b)
		}
	}
	if _, err := Export(t.Context(), newDaemon(), "yaml"); fault.KindOf(err) != fault.Usage {
		t.Errorf("another format: %v", err)
	}
}
