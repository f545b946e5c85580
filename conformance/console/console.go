// Package console drives palyrad's console in Debian's Chromium, as a person does: it enters with a
// code, answers questions, and looks at what attackers put into pages. The module is nested because
// of the driver: nothing that ships links it.
package console
