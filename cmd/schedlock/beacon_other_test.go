//go:build !linux

package main

func beacon(string) {}
func writer(string) {}
