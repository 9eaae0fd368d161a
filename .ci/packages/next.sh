#!/bin/sh
# Prints the next step after a first installation.

if [ -e /proc/driver/nvidia/version ]; then
    echo 'mig-mps: "sudo mig-mps doctor" checks driver, MIG and MPS, and "mig-mps init" writes a first profile'
else
    echo 'mig-mps: no NVIDIA driver is loaded: install one, then run "sudo mig-mps doctor"; "mig-mps check balanced" needs no GPU'
fi
