//go:build !linux

package main

import "context"

func reached(_ context.Context, d *demo) { d.expect(false, "cells run on Linux") }

func (d *demo) within(string) int { return 1 }
