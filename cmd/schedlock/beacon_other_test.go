//go:build !linux

package main

func beacon(string) {}
