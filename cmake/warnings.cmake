# Warnings for our own targets only; third-party headers come in as SYSTEM.
add_library(oscar_warnings INTERFACE)
target_compile_options(oscar_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers>
  # GCC 12 reports impossible overlaps in "literal" + std::string (GCC bug 105651).
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  # Without this GCC contracts a*b+c to FMA and the encoder's bytes depend on the compiler (architecture 7, fact 4).
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(OSCAR_WERROR)
  target_compile_options(oscar_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
