//go:build !linux

package main

import "errors"

func lending() bool { return false }

func run(config) (bool, error) { return false, errors.New("the attacks exist only on linux") }

func attribute(config, string, []string) error { return errors.New("the attacks exist only on linux") }

func summarize([]string, string) error { return errors.New("the attacks exist only on linux") }

const batteryFile = ""
