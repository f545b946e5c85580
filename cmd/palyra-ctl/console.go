package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/qr"
	"palyra/hub"
	"palyra/internal/fault"
)

// opener shows an address to a desktop's user in the browser of their choice.
const opener = "/usr/bin/xdg-open"

// browsers have application windows (--app=URL): Chromium and those that are made of it.
var browsers = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge", "microsoft-edge-stable"}

func (a *app) findBrowser() (string, error) {
	for _, name := range browsers {
		for _, dir := range filepath.SplitList(a.getenv("PATH")) {
			at := filepath.Join(dir, name)
			if fi, err := os.Stat(at); err == nil && filepath.IsAbs(at) && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
				return at, nil
			}
		}
	}
	return "", noWindow("no Chromium, Chrome or Edge is in PATH").WithHint("install one, such as chromium; palyra console open shows the console in another browser")
}

func noWindow(why string) *fault.Error {
	return fault.New(fault.Unsupported, "platform_unsupported", "open application window", errors.New(why)).WithHint("palyra console open --print")
}

// consoleOpen prints the console's address with a code. On a desktop the process becomes the
// program that opens it.
func (a *app) consoleOpen(ctx context.Context, inv *command.Invocation) (*result, error) {
	desktop, window, program := a.getenv("DISPLAY") != "" || a.getenv("WAYLAND_DISPLAY") != "", inv.Has("app"), opener
	if window {
		var err error
		if program, err = a.findBrowser(); err != nil {
			return nil, err
		}
		if !desktop {
			return nil, noWindow("there is no desktop: neither DISPLAY nor WAYLAND_DISPLAY is set")
		}
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	c, err := hub.OpenConsole.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	// An address that other machines reach isn't put into arguments, which all users may read: at the
	// door only this machine's connections have a user.
	u, err := url.Parse(c.URL)
	near := err == nil && u.Hostname() == "localhost"
	if window && !near {
		return nil, noWindow("other machines reach the console's address, and other users could read its code in the browser's arguments")
	}
	if inv.Has("qr") && !inv.Has("json") {
		return qrOf(c, near)
	}
	if !near || inv.Has("json") || inv.Has("print") || !desktop {
		return text(front.Document{"console": c}, "%s\n", c.URL), nil
	}
	if _, err := fmt.Fprintln(a.stdout, c.URL); err != nil {
		return nil, err
	}
	operand := c.URL
	if window {
		operand = "--app=" + c.URL
	}
	if err := become(program, operand); !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	return &result{streamed: true}, nil
}

// qrOf shows the console's address to a phone.
func qrOf(c hub.ConsoleCode, near bool) (*result, error) {
	const op = "show QR code"
	if near {
		return nil, fault.New(fault.Unavailable, "not_ready", op, errors.New("the console is at localhost, which no other machine reaches")).
			WithHint("listen.http at an address that the phone reaches, with listen.tls_cert and listen.tls_key")
	}
	code, err := qr.Encode(c.URL)
	if err != nil {
		return nil, fault.New(fault.Usage, "too_large", op, err)
	}
	return text(front.Document{"console": c}, "%s%s\n", code, c.URL), nil
}
