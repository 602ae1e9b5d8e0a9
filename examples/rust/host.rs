//! examples/minimal.c in Rust, without any crate. The structs of abi/*.h are written down by hand; tests/pack/rust_host.py
//! compares them (`--layout`) with what a C compiler says of the headers, and the outputs with those of the C host.
//!
//!     rustc -O examples/rust/host.rs -o host && ./host build/plugin/replayssm.so config.json
#![allow(non_snake_case)]
use std::ffi::{CStr, CString};
use std::{mem::*, os::raw::*, ptr::*};

macro_rules! abi { // the structs and constants, and a function that prints them
    (constants: $($c:ident: $type:ty = $value:expr),*; structs: $($s:ident { $($field:ident: $kind:ty),* })*) => {
        $(#[repr(C)] #[allow(non_camel_case_types, dead_code)] #[derive(Clone, Copy)] struct $s { $($field: $kind),* })*
        $(#[allow(non_upper_case_globals)] const $c: $type = $value;)*
        fn print_layout() {
            $(let x = MaybeUninit::<$s>::uninit();
              println!("sizeof({}) {}", stringify!($s), size_of::<$s>());
              $(println!("offsetof({}, {}) {}", stringify!($s), stringify!($field),
                         unsafe { addr_of!((*x.as_ptr()).$field) as usize } - x.as_ptr() as usize);)*)*
            $(println!("{} {}", stringify!($c), $c);)*
        }
    };
}

type Plugin = *mut c_void;
type Pointer = *const c_void;
type Text = *const c_char;
type Call<Args> = unsafe extern "C" fn(Plugin, *const Args, *mut rssm_error) -> i32;

abi! {
    constants: RSSM_ABI_MAJOR: u32 = 1, RSSM_DTYPE_FLOAT32: i32 = 1, RSSM_FAMILY_KDA: i32 = 1, RSSM_FAMILY_MAMBA2: i32 = 3,
        kDLCPU: i32 = 1, kDLInt: u8 = 0, kDLFloat: u8 = 2, RSSM_T_MIXED_QKV: usize = 1, RSSM_T_MIXED_XBC: usize = 5,
        RSSM_T_A: usize = 9, RSSM_T_B: usize = 10, RSSM_T_DT: usize = 11, RSSM_T_A_LOG: usize = 13, RSSM_T_DT_BIAS: usize = 15,
        RSSM_T_OUT: usize = 17, RSSM_T_ROWS: usize = 27, RSSM_T_COUNT: usize = 40, RSSM_ROW_WIDTH: usize = 8;
    structs:
    DLDevice { device_type: i32, device_id: i32 } DLDataType { code: u8, bits: u8, lanes: u16 }
    DLTensor { data: *mut c_void, device: DLDevice, ndim: i32, dtype: DLDataType, shape: Pointer, strides: Pointer, byte_offset: u64 }
    rssm_error { struct_size: u64, status: i32, role: i32, dim: i32, cuda_error: i32, expected: i64, got: i64,
        message: [c_char; 512] }
    rssm_init_args { struct_size: u64, config_json: Text, config_json_len: u64, config_path: Text, dims: Pointer,
        device_type: i32, device_id: i32, tp_size: i32, tp_rank: i32, layer_begin: i32, layer_end: i32, ring_length: i32,
        max_draft_tokens: i32, io_dtype: i32, state_dtype: i32, ring_dtype: i32, max_batch: i32, num_slots: i64,
        memory_budget_bytes: i64, has_pad_slot: i32, num_threads: i32, pad_slot: i64, flags: u32, cpu_level: i32,
        allocator: Pointer, log: Pointer, log_user: Pointer }
    rssm_description { struct_size: u64, family: i32, gate_kind: i32, family_name: Text, model_type: Text, num_layers: i32,
        num_linear_layers: i32, linear_layers: Pointer, model_H: i32, model_HV: i32, H: i32, HV: i32, K: i32, V: i32,
        head_begin: i32, group_begin: i32, tp_size: i32, tp_rank: i32, conv_kernel: i32, conv_channels: i32,
        has_lower_bound: i32, qk_norm: i32, lower_bound: f64, scale: f64, norm_eps: f64, beta_scale: f64,
        time_step_limit_min: f64, time_step_limit_max: f64, ring_length: i32, ring_rows: i32, max_draft_tokens: i32,
        io_dtype: i32, state_dtype: i32, ring_dtype: i32, device_type: i32, device_id: i32, layout_version: i32, small_batch: i32,
        layout_hash: u64, layout_text: Text, ring_reason: Text, read: Pointer, assumed: Pointer, num_read: i32, num_assumed: i32,
        step_bytes: i64, step_bytes_read_write: i64, cpu_level: Text, num_threads: i32, reserved_: i32 }
    rssm_step_begin_args { struct_size: u64, slots: *const DLTensor, force_flush: *const DLTensor, rows_out: *const DLTensor,
        stream: Pointer, flags: u32, reserved_: u32 }
    rssm_decode_args { struct_size: u64, tensors: *const *const DLTensor, num_tensors: u32, layer: i32, stream: Pointer,
        flags: u32, has_scale: i32, has_lower_bound: i32, reserved_: i32, scale: f64, lower_bound: f64 }
    rssm_api { struct_size: u64, abi_major: u32, abi_minor: u32, plugin_info: Pointer,
        init: unsafe extern "C" fn(*const rssm_init_args, *mut Plugin, *mut rssm_error) -> i32,
        describe: unsafe extern "C" fn(Plugin, *mut rssm_description, *mut rssm_error) -> i32, pool_layout: Pointer,
        prepare: unsafe extern "C" fn(Plugin, *mut rssm_error) -> i32, pool_create: Call<c_void>,
        pool_tensors: unsafe extern "C" fn(Plugin, i32, *mut *const DLTensor, u32, *mut rssm_error) -> i32, reset: Call<c_void>,
        step_begin: Call<rssm_step_begin_args>, validate: Call<rssm_decode_args>, decode: Call<rssm_decode_args>,
        get_extension: Pointer, teardown: unsafe extern "C" fn(*mut Plugin, *mut rssm_error) -> i32,
        status_name: unsafe extern "C" fn(i32) -> Text, role_name: unsafe extern "C" fn(i32) -> Text }
}

#[link(name = "dl")]
extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// A struct of the ABI: zeros are the defaults, and it starts with its own size.
unsafe fn make<T>() -> T {
    let mut made = MaybeUninit::<T>::zeroed();
    *made.as_mut_ptr().cast::<u64>() = size_of::<T>() as u64;
    made.assume_init()
}

/// What the plugin says of a call that failed.
unsafe fn said(api: &rssm_api, status: i32, e: &rssm_error) -> Result<(), String> {
    let [name, role, message] = [(api.status_name)(status), (api.role_name)(e.role), e.message.as_ptr()]
        .map(|s| CStr::from_ptr(s).to_string_lossy());
    let why = || format!("{}: {} (role {}, dim {}, expected {}, got {})", name, message, role, e.dim, e.expected, e.got);
    if status == 0 { Ok(()) } else { Err(why()) }
}

/// A compact tensor over the host's memory, which has to stay as long as the tensor is used.
fn tensor<T>(data: &mut [T], shape: &[i64], code: u8) -> DLTensor {
    let (device, dtype) = (DLDevice { device_type: kDLCPU, device_id: 0 }, DLDataType { code, bits: 32, lanes: 1 });
    let (data, ndim, shape) = (data.as_mut_ptr().cast(), shape.len() as i32, shape.as_ptr().cast());
    DLTensor { data, device, ndim, dtype, shape, strides: null(), byte_offset: 0 }
}

unsafe fn decode(plugin: &str, config: &str) -> Result<(), String> {
    let (plugin, config) = (CString::new(plugin).unwrap(), CString::new(config).unwrap());
    let symbol = dlsym(dlopen(plugin.as_ptr(), 2), "replayssm_get_api\0".as_ptr().cast()); // 2: RTLD_NOW
    let get_api: Option<extern "C" fn(u32) -> Option<&'static rssm_api>> = transmute(symbol);
    let api = get_api.ok_or("not a plugin")?(RSSM_ABI_MAJOR).ok_or("the plugin speaks another ABI")?;
    let (mut ssm, mut err, mut m): (Plugin, rssm_error, rssm_description) = (null_mut(), make(), make());
    let init = rssm_init_args { config_path: config.as_ptr(), io_dtype: RSSM_DTYPE_FLOAT32, num_slots: 1, ..make() };
    said(api, (api.init)(&init, &mut ssm, &mut err), &err)?;
    said(api, (api.describe)(ssm, &mut m, &mut err), &err)?;
    said(api, (api.prepare)(ssm, &mut err), &err)?;
    said(api, (api.pool_create)(ssm, null(), &mut err), &err)?;

    // Inputs and weights of one layer for one row; KDA gates every channel, the others every head.
    let (mamba, [H, HV, K, V]) = (m.family == RSSM_FAMILY_MAMBA2, [m.H, m.HV, m.K, m.V].map(i64::from));
    let (packed, gates) = (2 * H * K + HV * V, if m.family == RSSM_FAMILY_KDA { HV * K } else { HV });
    let [mut x, mut a, mut b, mut A_log, mut dt_bias] = [packed, gates, HV, HV, gates]
        .map(|n| (0..n).map(|i| 0.1 * (i % 7 - 3) as f32).collect::<Vec<f32>>());
    let (mut out, mut slot, mut row) = (vec![0f32; (HV * V) as usize], [0i32], [0i32; RSSM_ROW_WIDTH]);
    let (one, packed, gate, heads, outs, weights) = ([1], [1, packed], [1, gates], [1, HV], [1, HV, V], [gates]);
    let (rows, short, tensors) = ([1, RSSM_ROW_WIDTH as i64], [1, HV, V - 1], &mut [null::<DLTensor>(); RSSM_T_COUNT]);
    let (slots, rows, tensors) = (tensor(&mut slot, &one, kDLInt), tensor(&mut row, &rows, kDLInt), tensors.as_mut_ptr());
    let made = [
        (if mamba { RSSM_T_MIXED_XBC } else { RSSM_T_MIXED_QKV }, tensor(&mut x, &packed, kDLFloat)),
        (if mamba { RSSM_T_DT } else { RSSM_T_A }, tensor(&mut a, &gate, kDLFloat)),
        (RSSM_T_B, tensor(&mut b, &heads, kDLFloat)),
        (RSSM_T_A_LOG, tensor(&mut A_log, &heads[1..], kDLFloat)),
        (RSSM_T_DT_BIAS, tensor(&mut dt_bias, &weights, kDLFloat)),
        (RSSM_T_OUT, tensor(&mut out, &outs, kDLFloat)),
        (RSSM_T_ROWS, rows),
    ];
    made.iter().filter(|(role, _)| !mamba || *role != RSSM_T_B).for_each(|(role, t)| *tensors.add(*role) = t);
    let begin = rssm_step_begin_args { slots: &slots, rows_out: &rows, ..make() };
    let mut step = rssm_decode_args { tensors, num_tensors: RSSM_T_COUNT as u32, ..make() };
    for token in 0..5 {
        said(api, (api.step_begin)(ssm, &begin, &mut err), &err)?;
        for layer in 0..m.num_linear_layers {
            step.layer = layer; // state and ring of this layer
            said(api, (api.pool_tensors)(ssm, layer, tensors, RSSM_T_COUNT as u32, &mut err), &err)?;
            said(api, (api.decode)(ssm, &step, &mut err), &err)?;
        }
        println!("token {}: out = {:?} ...", token, &out[..4]);
    }
    let short = tensor(&mut out, &short, kDLFloat); // what a wrong tensor gets
    *tensors.add(RSSM_T_OUT) = &short;
    println!("refused: {}", said(api, (api.validate)(ssm, &step, &mut err), &err).unwrap_err());
    said(api, (api.teardown)(&mut ssm, &mut err), &err)
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.len() {
        2 if args[1] == "--layout" => Ok(print_layout()),
        3 => unsafe { decode(&args[1], &args[2]) },
        _ => Err("usage: host PLUGIN.so CONFIG.json | --layout".to_string()),
    }
    .unwrap_or_else(|why| { eprintln!("{}", why); std::process::exit(1) })
}
