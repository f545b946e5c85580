package main

import (
	"fmt"
	"strings"
)

// console: at the service's listener a code lets its own user's browser in, and nothing another
// user's, neither the code nor the cookie.
func (m *manager) console() (string, error) {
	address, err := m.as(m.alice, "palyra", "console", "open", "--print")
	if err != nil {
		return "", err
	}
	other, err := m.as(m.palyra, "/usr/lib/lab", "browse", address, "")
	if err != nil {
		return "", err
	}
	own, err := m.as(m.alice, "/usr/lib/lab", "browse", address, "")
	if err != nil {
		return "", err
	}
	page, cookie, _ := strings.Cut(own, "\n")
	questions, _, _ := strings.Cut(address, "/enter")
	questions += "/console/questions"
	again, err := m.as(m.alice, "/usr/lib/lab", "browse", questions, cookie)
	if err != nil {
		return "", err
	}
	stolen, err := m.as(m.palyra, "/usr/lib/lab", "browse", questions, cookie)
	if err != nil {
		return "", err
	}
	first := func(s string) string { s, _, _ = strings.Cut(s, "\n"); return s }
	return fmt.Sprintf("%s, again %s; another user: code %.3s, cookie %.3s", page, first(again), other, stolen), nil
}
