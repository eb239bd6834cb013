// Package pair tests the pair: the real control server with the real agent
// joined to it, on real containerd, driven by stock kubectl.
package pair
