// Package imagepull tests package images with real containerds of its own, which pull from a registry on
// loopback.
package imagepull
